// Function: fused_conv2d_add_relu_kernel
__kernel __attribute__((intel_reqd_sub_group_size(8))) __attribute__((reqd_work_group_size(8, 1, 1))) void fused_conv2d_add_relu_kernel(__global float* restrict _ptr, __global float* restrict _ptr_1, __global float* restrict _ptr_2, __global float* restrict _ptr_3) {
  int _ptr_4[1];
  int _ptr_5[1];
  int _ptr_6[1];
  int _ptr_7[1];
  int _ptr_8[1];
  float _ptr_9[2];
  int _ptr_10[1];
  float _ptr_11[1];
  int _ptr_12[1];
  float _ptr_13[1];
  int _ptr_14[1];
  float _ptr_15[1];
  float _ptr_16[2];
  float _ptr_17[3];
  float _ptr_18[2];
  float _ptr_19[3];
  float _ptr_20[2];
  float _ptr_21[3];
  _ptr_4[0] = (convert_int(get_sub_group_local_id()));
  _ptr_5[0] = ((convert_int(get_group_id(0))) % 3);
  _ptr_6[0] = (((convert_int(get_group_id(0))) % 18) / 3);
  _ptr_7[0] = ((convert_int(get_group_id(0))) / 18);
  _ptr_8[0] = 0;
  _ptr_9[0] = 0.000000e+00f;
  _ptr_9[1] = 0.000000e+00f;
  for (int v = 0; v < 4; ++v) {
    int cse_v1 = (v * 24);
    _ptr_10[0] = ((_ptr_7[0] * 96) + (v * 24));
    _ptr_11[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr + _ptr_10[0])));
    _ptr_12[0] = (((_ptr_7[0] * 96) + (v * 24)) + 8);
    _ptr_13[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr + _ptr_12[0])));
    _ptr_14[0] = (((_ptr_7[0] * 96) + (v * 24)) + 16);
    _ptr_15[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr + _ptr_14[0])));
    int cse_v2 = (v * 144);
    if (((bool)(1 <= _ptr_6[0])) && ((bool)(1 <= _ptr_5[0]))) {
      _ptr_16[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) - 25))));
    } else {
      float condval;
      if (((bool)(1 <= _ptr_6[0])) && ((bool)(1 <= ((_ptr_5[0] * 8) + _ptr_4[0])))) {
        condval = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) - 25)];
      } else {
        condval = 0.000000e+00f;
      }
      _ptr_16[0] = condval;
    }
    if (((bool)(1 <= _ptr_6[0])) && ((bool)(_ptr_5[0] < 2))) {
      _ptr_16[1] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) - 17))));
    } else {
      float condval_1;
      if (((bool)(1 <= _ptr_6[0])) && ((bool)(((_ptr_5[0] * 8) + _ptr_4[0]) < 17))) {
        condval_1 = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) - 17)];
      } else {
        condval_1 = 0.000000e+00f;
      }
      _ptr_16[1] = condval_1;
    }
    _ptr_17[1] = intel_sub_group_shuffle_down(_ptr_16[0], _ptr_16[1], 1);
    _ptr_17[2] = intel_sub_group_shuffle_down(_ptr_16[0], _ptr_16[1], 2);
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_11[0], 0) * _ptr_16[0]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_11[0], 1) * _ptr_16[0]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_11[0], 2) * _ptr_17[1]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_11[0], 3) * _ptr_17[1]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_11[0], 4) * _ptr_17[2]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_11[0], 5) * _ptr_17[2]));
    if (1 <= _ptr_5[0]) {
      _ptr_18[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) - 1))));
    } else {
      float condval_2;
      if (1 <= ((_ptr_5[0] * 8) + _ptr_4[0])) {
        condval_2 = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) - 1)];
      } else {
        condval_2 = 0.000000e+00f;
      }
      _ptr_18[0] = condval_2;
    }
    if (_ptr_5[0] < 2) {
      _ptr_18[1] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + 7))));
    } else {
      float condval_3;
      if (((_ptr_5[0] * 8) + _ptr_4[0]) < 17) {
        condval_3 = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) + 7)];
      } else {
        condval_3 = 0.000000e+00f;
      }
      _ptr_18[1] = condval_3;
    }
    _ptr_19[1] = intel_sub_group_shuffle_down(_ptr_18[0], _ptr_18[1], 1);
    _ptr_19[2] = intel_sub_group_shuffle_down(_ptr_18[0], _ptr_18[1], 2);
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_13[0], 0) * _ptr_18[0]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_13[0], 1) * _ptr_18[0]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_13[0], 2) * _ptr_19[1]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_13[0], 3) * _ptr_19[1]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_13[0], 4) * _ptr_19[2]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_13[0], 5) * _ptr_19[2]));
    if (((bool)(_ptr_6[0] < 5)) && ((bool)(1 <= _ptr_5[0]))) {
      _ptr_20[0] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + 23))));
    } else {
      float condval_4;
      if (((bool)(_ptr_6[0] < 5)) && ((bool)(1 <= ((_ptr_5[0] * 8) + _ptr_4[0])))) {
        condval_4 = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) + 23)];
      } else {
        condval_4 = 0.000000e+00f;
      }
      _ptr_20[0] = condval_4;
    }
    if (((bool)(_ptr_6[0] < 5)) && ((bool)(_ptr_5[0] < 2))) {
      _ptr_20[1] = as_float(intel_sub_group_block_read(((__global uint *)_ptr_1 + ((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + 31))));
    } else {
      float condval_5;
      if (((bool)(_ptr_6[0] < 5)) && ((bool)(((_ptr_5[0] * 8) + _ptr_4[0]) < 17))) {
        condval_5 = _ptr_1[(((((v * 144) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + _ptr_4[0]) + 31)];
      } else {
        condval_5 = 0.000000e+00f;
      }
      _ptr_20[1] = condval_5;
    }
    _ptr_21[1] = intel_sub_group_shuffle_down(_ptr_20[0], _ptr_20[1], 1);
    _ptr_21[2] = intel_sub_group_shuffle_down(_ptr_20[0], _ptr_20[1], 2);
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_15[0], 0) * _ptr_20[0]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_15[0], 1) * _ptr_20[0]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_15[0], 2) * _ptr_21[1]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_15[0], 3) * _ptr_21[1]));
    _ptr_9[0] = (_ptr_9[0] + (intel_sub_group_shuffle(_ptr_15[0], 4) * _ptr_21[2]));
    _ptr_9[1] = (_ptr_9[1] + (intel_sub_group_shuffle(_ptr_15[0], 5) * _ptr_21[2]));
  }
  float condval_6;
  if ((_ptr_9[0] + _ptr_3[(_ptr_7[0] * 2)]) < 0.000000e+00f) {
    condval_6 = 0.000000e+00f;
  } else {
    condval_6 = (_ptr_9[0] + _ptr_3[(_ptr_7[0] * 2)]);
  }
  intel_sub_group_block_write(((__global uint *)_ptr_2 + (((_ptr_7[0] * 288) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8))), as_uint(condval_6));
  float condval_7;
  if ((_ptr_9[1] + _ptr_3[((_ptr_7[0] * 2) + 1)]) < 0.000000e+00f) {
    condval_7 = 0.000000e+00f;
  } else {
    condval_7 = (_ptr_9[1] + _ptr_3[((_ptr_7[0] * 2) + 1)]);
  }
  intel_sub_group_block_write(((__global uint *)_ptr_2 + ((((_ptr_7[0] * 288) + (_ptr_6[0] * 24)) + (_ptr_5[0] * 8)) + 144)), as_uint(condval_7));
}

